import ai.triptych.client.ChatStream;
import ai.triptych.client.Media;
import ai.triptych.client.Messages;
import ai.triptych.client.TriptychClient;
import ai.triptych.client.TriptychClientBuilder;
import ai.triptych.client.errors.TriptychException;
import ai.triptych.v1.ChatRequest;
import ai.triptych.v1.GenerationOptions;
import ai.triptych.v1.SamplingParams;
import ai.triptych.v1.Usage;
import java.io.IOException;
import java.nio.file.Path;

/** Streams an answer about a picture: {@code ChatWithPicture [ADDRESS [PICTURE [QUESTION]]]}. */
final class ChatWithPicture {
  private ChatWithPicture() {}

  public static void main(String[] arguments) throws IOException {
    Path picture = Path.of(argument(arguments, 1, "examples/three-shapes.png"));
    ChatRequest request =
        ChatRequest.newBuilder()
            .addMessages(Messages.user(argument(arguments, 2, "Where is the triangle?"), Media.image(picture)))
            .setOptions(GenerationOptions.newBuilder().setSampling(SamplingParams.newBuilder().setTemperature(0)))
            .build();

    TriptychClientBuilder builder = TriptychClient.builder();
    if (arguments.length > 0) builder.address(arguments[0]);
    try (TriptychClient client = builder.build();
        ChatStream stream = client.chatStream(request)) {
      for (String text : stream.textDeltas()) {
        System.out.print(text);
        System.out.flush();
      }
      System.out.println();
      Usage usage = stream.response().getUsage();
      System.err.printf("%d of %d prompt tokens are the picture's%n", usage.getImageTokens(), usage.getPromptTokens());
    } catch (TriptychException e) {
      System.err.println(e.contractName() + ": " + e.getMessage());
      System.exit(1);
    }
  }

  private static String argument(String[] arguments, int index, String otherwise) {
    return arguments.length > index ? arguments[index] : otherwise;
  }
}
