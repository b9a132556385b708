import JAVA_PACKAGE.ChatMessage;
import JAVA_PACKAGE.ChatRequest;
import JAVA_PACKAGE.ContentPart;
import JAVA_PACKAGE.GenerationOptions;
import JAVA_PACKAGE.GenerationServiceGrpc;
import JAVA_PACKAGE.SamplingParams;

public class Main {
  /** Compiled, not called: a client that nobody answers. */
  static GenerationServiceGrpc.GenerationServiceBlockingStub client(io.grpc.Channel channel) {
    return GenerationServiceGrpc.newBlockingStub(channel);
  }

  public static void main(String[] arguments) {
    ChatRequest request =
        ChatRequest.newBuilder()
            .setModel("m")
            .addMessages(ChatMessage.newBuilder().setRole("user").addContent(ContentPart.newBuilder().setText("Hi")))
            .setOptions(
                GenerationOptions.newBuilder()
                    .setSampling(SamplingParams.newBuilder().setTemperature(0.5f).setMaxTokens(8)))
            .build();
    StringBuilder hex = new StringBuilder();
    for (byte one : request.toByteArray()) hex.append(String.format("%02x", one));
    System.out.println(GenerationServiceGrpc.SERVICE_NAME + " " + hex);
  }
}
