import { create, toBinary } from "@bufbuild/protobuf";
import { ChatRequestSchema, GenerationService } from "./gen/triptych/v1/generation_pb.js";

const request = create(ChatRequestSchema, {
  model: "m",
  messages: [{ role: "user", content: [{ part: { case: "text", value: "Hi" } }] }],
  options: { sampling: { temperature: 0.5, maxTokens: 8 } },
});
const hex = Array.from(toBinary(ChatRequestSchema, request), (byte) => byte.toString(16).padStart(2, "0"));
console.log(`${GenerationService.method.chat.parent.typeName} ${hex.join("")}`);
