/** Asks about a picture and prints the answer as it appears: node dist/examples/chat-with-picture.js 127.0.0.1:50051 PICTURE QUESTION */
import { imageFile, TriptychClient, userMessage } from "../src/index.js";

const [address = "127.0.0.1:50051", picture = "../../examples/three-shapes.png", question = "Where is the triangle?"] =
  process.argv.slice(2);

const client = new TriptychClient({ address, timeoutMs: 60_000 });
try {
  const stream = client.chatStream({
    chat: {
      messages: [userMessage(await imageFile(picture), question)],
      options: { sampling: { temperature: 0, maxTokens: 64 } },
    },
  });
  for await (const text of stream.text()) process.stdout.write(text);
  const { usage } = await stream.finalResponse();
  console.log(
    `\n${usage?.promptTokens} tokens in (${usage?.imageTokens} of the picture), ${usage?.completionTokens} out`,
  );
} finally {
  client.close();
}
