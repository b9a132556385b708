package ai.triptych.client;

import ai.triptych.v1.ChatRequest;
import ai.triptych.v1.ChatResponse;
import ai.triptych.v1.ChatStreamRequest;
import ai.triptych.v1.ClassifyRequest;
import ai.triptych.v1.ClassifyResponse;
import ai.triptych.v1.CompleteRequest;
import ai.triptych.v1.CompleteResponse;
import ai.triptych.v1.CompleteStreamRequest;
import ai.triptych.v1.DetokenizeRequest;
import ai.triptych.v1.DetokenizeResponse;
import ai.triptych.v1.DetokenizeServiceGrpc;
import ai.triptych.v1.EmbedRequest;
import ai.triptych.v1.EmbedResponse;
import ai.triptych.v1.GenerationServiceGrpc;
import ai.triptych.v1.ListModelsRequest;
import ai.triptych.v1.ListModelsResponse;
import ai.triptych.v1.PreprocessRequest;
import ai.triptych.v1.PreprocessResponse;
import ai.triptych.v1.PreprocessServiceGrpc;
import ai.triptych.v1.ScoreRequest;
import ai.triptych.v1.ScoreResponse;
import ai.triptych.v1.TokenizeRequest;
import ai.triptych.v1.TokenizeResponse;
import io.grpc.Channel;
import java.util.Map;

/**
 * Client of a Triptych gateway.
 *
 * <pre>{@code
 * try (TriptychClient client = TriptychClient.builder().address("127.0.0.1:50051").build()) {
 *   ChatRequest request = ChatRequest.newBuilder().addMessages(Messages.user("What is the capital of France?")).build();
 *   System.out.println(client.chat(request).getChoices(0).getText());
 * }
 * }</pre>
 *
 * <p>It connects at its first call, and again after each loss. Threads may share one client. A thread that is interrupted while it
 * waits for a response cancels its call, and gets a {@link ai.triptych.client.errors.RequestAbortedException}.
 *
 * <p>Calls that fail throw a {@link ai.triptych.client.errors.TriptychException}, whose class says why. Without {@link
 * RequestOptions} they have the client's timeout and a random request id.
 *
 * <p>Requests and responses are the messages of {@code ai.triptych.v1}. docs/contracts.md explains them. A request of more than
 * 64 MiB is refused with an {@link ai.triptych.client.errors.InvalidRequestException} before it is sent.
 */
public final class TriptychClient implements AutoCloseable {
  private final Connection connection;

  TriptychClient(Connection connection) {
    this.connection = connection;
  }

  /**
   * Starts a new client. Its defaults come from the environment variables of this process.
   *
   * @return a builder
   */
  public static TriptychClientBuilder builder() {
    return builder(System.getenv());
  }

  /** The same with other environment variables. */
  static TriptychClientBuilder builder(Map<String, String> environment) {
    return new TriptychClientBuilder(environment);
  }

  /**
   * The assistant's turn, when all choices have ended.
   *
   * @param request the messages and how to answer them
   * @return the response
   */
  public ChatResponse chat(ChatRequest request) {
    return chat(request, RequestOptions.none());
  }

  /** As {@link #chat(ChatRequest)}, with options. */
  public ChatResponse chat(ChatRequest request, RequestOptions options) {
    return connection.unary(GenerationServiceGrpc.getChatMethod(), request, options);
  }

  /**
   * As {@link #chat(ChatRequest)}, while it is generated. Read the stream to its end, or close it.
   *
   * @param request as of {@code chat}
   * @return the stream
   */
  public ChatStream chatStream(ChatRequest request) {
    return chatStream(request, RequestOptions.none());
  }

  /** As {@link #chatStream(ChatRequest)}, with options. */
  public ChatStream chatStream(ChatRequest request, RequestOptions options) {
    return chatStream(ChatStreamRequest.newBuilder().setChat(request).build(), options);
  }

  /** As {@link #chatStream(ChatRequest)}, with a say in when responses are sent, and with options. */
  public ChatStream chatStream(ChatStreamRequest request, RequestOptions options) {
    return new ChatStream(connection.start(GenerationServiceGrpc.getChatStreamMethod(), request, options));
  }

  /**
   * The continuation of a prompt, when all choices have ended.
   *
   * @param request the prompt and how to continue it
   * @return the response
   */
  public CompleteResponse complete(CompleteRequest request) {
    return complete(request, RequestOptions.none());
  }

  /** As {@link #complete(CompleteRequest)}, with options. */
  public CompleteResponse complete(CompleteRequest request, RequestOptions options) {
    return connection.unary(GenerationServiceGrpc.getCompleteMethod(), request, options);
  }

  /**
   * As {@link #complete(CompleteRequest)}, while it is generated. Read the stream to its end, or close it.
   *
   * @param request as of {@code complete}
   * @return the stream
   */
  public CompleteStream completeStream(CompleteRequest request) {
    return completeStream(request, RequestOptions.none());
  }

  /** As {@link #completeStream(CompleteRequest)}, with options. */
  public CompleteStream completeStream(CompleteRequest request, RequestOptions options) {
    return completeStream(CompleteStreamRequest.newBuilder().setComplete(request).build(), options);
  }

  /** As {@link #completeStream(CompleteRequest)}, with a say in when responses are sent, and with options. */
  public CompleteStream completeStream(CompleteStreamRequest request, RequestOptions options) {
    return new CompleteStream(connection.start(GenerationServiceGrpc.getCompleteStreamMethod(), request, options));
  }

  /**
   * A vector for each input, in their order.
   *
   * @param request the inputs
   * @return the response
   */
  public EmbedResponse embed(EmbedRequest request) {
    return embed(request, RequestOptions.none());
  }

  /** As {@link #embed(EmbedRequest)}, with options. */
  public EmbedResponse embed(EmbedRequest request, RequestOptions options) {
    return connection.unary(GenerationServiceGrpc.getEmbedMethod(), request, options);
  }

  /**
   * How well each document fits its query, in the order of the documents.
   *
   * @param request the queries and the documents
   * @return the response
   */
  public ScoreResponse score(ScoreRequest request) {
    return score(request, RequestOptions.none());
  }

  /** As {@link #score(ScoreRequest)}, with options. */
  public ScoreResponse score(ScoreRequest request, RequestOptions options) {
    return connection.unary(GenerationServiceGrpc.getScoreMethod(), request, options);
  }

  /**
   * A value for each label of the model, for each input.
   *
   * @param request the inputs
   * @return the response
   */
  public ClassifyResponse classify(ClassifyRequest request) {
    return classify(request, RequestOptions.none());
  }

  /** As {@link #classify(ClassifyRequest)}, with options. */
  public ClassifyResponse classify(ClassifyRequest request, RequestOptions options) {
    return connection.unary(GenerationServiceGrpc.getClassifyMethod(), request, options);
  }

  /**
   * The tokens of a text, without a template.
   *
   * @param request the text
   * @return the response
   */
  public TokenizeResponse tokenize(TokenizeRequest request) {
    return tokenize(request, RequestOptions.none());
  }

  /** As {@link #tokenize(TokenizeRequest)}, with options. */
  public TokenizeResponse tokenize(TokenizeRequest request, RequestOptions options) {
    return connection.unary(PreprocessServiceGrpc.getTokenizeMethod(), request, options);
  }

  /**
   * The text of tokens.
   *
   * @param request the tokens
   * @return the response
   */
  public DetokenizeResponse detokenize(DetokenizeRequest request) {
    return detokenize(request, RequestOptions.none());
  }

  /** As {@link #detokenize(DetokenizeRequest)}, with options. */
  public DetokenizeResponse detokenize(DetokenizeRequest request, RequestOptions options) {
    return connection.unary(DetokenizeServiceGrpc.getDetokenizeMethod(), request, options);
  }

  /**
   * The prompt that the engine would get: text, tokens, places of media. Nothing is generated.
   *
   * @param request a request of chat or complete
   * @return the response
   */
  public PreprocessResponse preprocess(PreprocessRequest request) {
    return preprocess(request, RequestOptions.none());
  }

  /** As {@link #preprocess(PreprocessRequest)}, with options. */
  public PreprocessResponse preprocess(PreprocessRequest request, RequestOptions options) {
    return connection.unary(PreprocessServiceGrpc.getPreprocessMethod(), request, options);
  }

  /**
   * The models that a request can name.
   *
   * @return the models
   */
  public ListModelsResponse listModels() {
    return listModels(RequestOptions.none());
  }

  /** As {@link #listModels()}, with options. */
  public ListModelsResponse listModels(RequestOptions options) {
    return connection.unary(GenerationServiceGrpc.getListModelsMethod(), ListModelsRequest.getDefaultInstance(), options);
  }

  /**
   * The channel with the client's key and interceptors, for the stubs of {@code ai.triptych.v1}: for calls that have no method
   * here, and for calls that must not block. Their errors are those of gRPC.
   *
   * @return the channel, which {@link #close()} closes
   */
  public Channel channel() {
    return connection.channel();
  }

  /**
   * Closes the connection. Calls that have not ended are cancelled, and end with a {@link
   * ai.triptych.client.errors.RequestAbortedException}.
   */
  @Override
  public void close() {
    connection.close();
  }
}
