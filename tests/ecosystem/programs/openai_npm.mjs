// The openai package of npm. Arguments: base URL (with /v1), model.
import assert from "node:assert/strict";
import OpenAI from "openai";

const [baseURL, model] = process.argv.slice(2);
const client = new OpenAI({ baseURL, apiKey: "none", maxRetries: 0 });
const messages = [{ role: "user", content: "What is the capital of France?" }];
const options = { model, temperature: 0, max_completion_tokens: 48 };
const schema = {
  type: "object",
  properties: { name: { type: "string", maxLength: 20 }, is_capital: { type: "boolean" } },
  required: ["name", "is_capital"],
  additionalProperties: false,
};
const tools = [{ type: "function", function: { name: "find_city", parameters: schema, strict: true } }];

const whole = await client.chat.completions.create({ ...options, messages });
assert.match(whole.choices[0].message.content, /Paris/);

let text = "";
for await (const chunk of await client.chat.completions.create({ ...options, messages, stream: true, stream_options: { include_usage: true } })) {
  text += chunk.choices[0]?.delta.content ?? "";
}
assert.equal(text, whole.choices[0].message.content);

const final = await client.chat.completions.stream({ ...options, messages }).finalChatCompletion();
assert.equal(final.choices[0].message.content, text);

// A tiny model would go on calling until its last token.
const once = { tools, parallel_tool_calls: false };
const forced = await client.chat.completions.create({ ...options, ...once, messages, tool_choice: "required" });
assert.equal(forced.choices[0].finish_reason, "tool_calls");
assert.equal(typeof JSON.parse(forced.choices[0].message.tool_calls[0].function.arguments).name, "string");

const named = await client.chat.completions
  .stream({ ...options, ...once, messages, tool_choice: { type: "function", function: { name: "find_city" } } })
  .finalChatCompletion();
assert.equal(named.choices[0].message.tool_calls[0].function.name, "find_city");

const response_format = { type: "json_schema", json_schema: { name: "city", schema, strict: true } };
const shaped = await client.chat.completions.create({ ...options, messages, response_format });
assert.equal(typeof JSON.parse(shaped.choices[0].message.content).is_capital, "boolean");

const completed = await client.completions.create({ model, prompt: "Once upon a time", max_tokens: 8, logprobs: 2, temperature: 0 });
assert.equal(completed.choices[0].logprobs.tokens.length, 8);

const page = await client.models.list();
assert.ok(page.data.some((one) => one.id === model));

await assert.rejects(client.chat.completions.create({ ...options, model: "no-such-model", messages }), (error) => {
  assert.ok(error instanceof OpenAI.NotFoundError);
  assert.equal(error.code, "model_not_found");
  return true;
});

const response = await client.responses.create({ model, input: "What is the capital of France?", temperature: 0, max_output_tokens: 48 });
assert.match(response.output_text, /Paris/);

const kept = await client.responses.retrieve(response.id);
assert.equal(kept.output_text ?? kept.output[0].content[0].text, response.output_text);

const next = await client.responses.create({ model, input: "And of Italy?", previous_response_id: response.id, max_output_tokens: 16 });
assert.equal(next.previous_response_id, response.id);

const kinds = [];
for await (const event of await client.responses.create({ model, input: "Say hello.", stream: true, max_output_tokens: 8 })) kinds.push(event.type);
assert.equal(kinds[0], "response.created");

await client.responses.delete(response.id);
await assert.rejects(client.responses.retrieve(response.id), OpenAI.NotFoundError);
console.log("ok");
