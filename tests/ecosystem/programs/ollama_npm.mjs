// The ollama package of npm. Arguments: URL of a scripted server, URL of a real one that has `embed` too, model, path of a picture.
import assert from "node:assert/strict";
import fs from "node:fs";
import { Ollama } from "ollama";

const [scripted, served, model, picture] = process.argv.slice(2);
const [mock, real] = [scripted, served].map((host) => new Ollama({ host }));
const messages = [{ role: "user", content: "What is the capital of France?" }];
const options = { temperature: 0, num_predict: 48 };
const schema = {
  type: "object",
  properties: { name: { type: "string", maxLength: 20 }, is_capital: { type: "boolean" } },
  required: ["name", "is_capital"],
};
const tool = { type: "function", function: { name: "get_weather", description: "Weather of a city", parameters: { type: "object", properties: { city: { type: "string" } } } } };

async function read(stream, of) {
  let text = "";
  let last;
  for await (const part of stream) {
    text += of(part) ?? "";
    last = part;
  }
  assert.equal(last.done, true);
  return [text, last];
}

const whole = await real.chat({ model, messages, options });
assert.match(whole.message.content, /Paris/);
assert.ok(whole.eval_duration > 0 && whole.prompt_eval_duration > 0 && whole.total_duration > whole.eval_duration);
const [text, last] = await read(await real.chat({ model: `${model}:latest`, messages, options, stream: true }), (part) => part.message.content);
assert.equal(text, whole.message.content);
assert.equal(last.eval_count, whole.eval_count);

const generated = await real.generate({ model, prompt: messages[0].content, options });
assert.match(generated.response, /Paris/);
const [response] = await read(await real.generate({ model, prompt: messages[0].content, options, stream: true }), (part) => part.response);
assert.equal(response, generated.response);

const seen = await real.chat({ model, messages: [{ role: "user", content: "Where is the triangle?", images: [fs.readFileSync(picture)] }], options });
assert.equal(seen.message.content.trim(), "Top");

const shaped = await real.chat({ model, messages, format: schema, options: { ...options, num_predict: 200 } });
assert.equal(typeof JSON.parse(shaped.message.content).is_capital, "boolean");

const call = { id: "call_1", name: "get_weather", arguments: JSON.stringify({ city: "Oslo" }) };
const asked = [{ role: "user", content: JSON.stringify({ mock: { toolCalls: [call], reasoning: "Hm.", text: "I look." } }) }];
const called = await mock.chat({ model, messages: asked, tools: [tool] });
assert.deepEqual(called.message.tool_calls[0].function.arguments, { city: "Oslo" });
assert.equal(called.message.thinking, "Hm.");
const result = { role: "tool", content: "sunny in Oslo", tool_name: "get_weather" };
const after = await mock.chat({ model, messages: [...asked, called.message, result], tools: [tool] });
assert.equal(after.message.content, "sunny in Oslo");
const [thought] = await read(await mock.chat({ model, messages: asked, tools: [tool], stream: true }), (part) => part.message.thinking);
assert.equal(thought, "Hm.");

const embedded = await real.embed({ model: "embed", input: ["A cat.", "A tax form."] });
assert.equal(embedded.embeddings.length, 2);
assert.ok(Math.abs(Math.hypot(...embedded.embeddings[0]) - 1) < 1e-3);
assert.equal((await real.embeddings({ model: "embed", prompt: "A cat." })).embedding.length, embedded.embeddings[0].length);

assert.ok((await real.list()).models.some((one) => one.name === `${model}:latest`));
assert.ok((await real.ps()).models.some((one) => one.name === `${model}:latest` && new Date(one.expires_at) > new Date()));
assert.ok((await real.show({ model })).capabilities.includes("vision"));
assert.match((await real.version()).version, /^\d+\.\d+\.\d+$/);

async function isRefused(asking, status, message) {
  await assert.rejects(asking, (error) => {
    assert.equal(error.status_code, status);
    assert.match(error.message, message);
    return true;
  });
}
await isRefused(real.chat({ model: "no-such-model", messages }), 404, /^model "no-such-model" not found$/);
await isRefused(real.chat({ model, messages, options: { num_thread: 4 } }), 400, /^options\.num_thread: not supported/);
await isRefused(real.pull({ model }), 404, /triptych serve/);
const broken = [{ role: "user", content: JSON.stringify({ mock: { text: "One two three.", fault: { afterTokens: 2, error: { code: 13 } } } }) }];
await assert.rejects(read(await mock.chat({ model, messages: broken, stream: true }), (part) => part.message.content));

// A client that leaves ends the work.
const endless = await real.chat({ model, messages: [{ role: "user", content: "Count to a thousand." }], stream: true });
await assert.rejects(async () => {
  for await (const _ of endless) endless.abort();
}, /abort/i);
console.log("ok");
