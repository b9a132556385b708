// Files, uploads and batches with the openai package of npm. Arguments: base URL (with /v1), model.
import assert from "node:assert/strict";
import { createHash } from "node:crypto";
import OpenAI, { toFile } from "openai";

const [baseURL, model] = process.argv.slice(2);
const client = new OpenAI({ baseURL, apiKey: "none", maxRetries: 0 });
const line = (custom_id, content, more = {}) =>
  JSON.stringify({
    custom_id,
    method: "POST",
    url: "/v1/chat/completions",
    body: { model, temperature: 0, max_completion_tokens: 16, messages: [{ role: "user", content }], ...more },
  });

async function ended(batch) {
  while (!["completed", "failed", "expired", "cancelled"].includes(batch.status)) {
    await new Promise((resolve) => setTimeout(resolve, 200));
    batch = await client.batches.retrieve(batch.id);
  }
  return batch;
}

async function batchOf(...lines) {
  const file = await client.files.create({ file: await toFile(Buffer.from(lines.join("\n")), "in.jsonl"), purpose: "batch" });
  return client.batches.create({
    input_file_id: file.id,
    endpoint: "/v1/chat/completions",
    completion_window: "24h",
    metadata: { job: "npm" },
  });
}

const linesOf = async (id) => (await (await client.files.content(id)).text()).trim().split("\n").map((text) => JSON.parse(text));

const question = "What is the capital of France?";
const batch = await ended(await batchOf(line("a", question), line("b", "Hello"), line("c", "Hello", { colour: "red" })));
assert.equal(batch.status, "completed");
assert.deepEqual(batch.request_counts, { total: 3, completed: 2, failed: 1 });
assert.equal(batch.metadata.job, "npm");
const output = await linesOf(batch.output_file_id);
assert.deepEqual(output.map((one) => one.custom_id).sort(), ["a", "b"]);
assert.match(output.find((one) => one.custom_id === "a").response.body.choices[0].message.content, /Paris/);
const [refused] = await linesOf(batch.error_file_id);
assert.equal(refused.response.body.error.param, "colour");

const failed = await ended(await batchOf(line("a", question), "{"));
assert.equal(failed.status, "failed");
assert.equal(failed.errors.data[0].line, 2);

const ids = [];
for await (const one of client.batches.list({ limit: 1 })) ids.push(one.id);
assert.deepEqual(ids.slice(0, 2), [failed.id, batch.id]);
await assert.rejects(client.batches.cancel(batch.id), OpenAI.BadRequestError);

const parts = ["The code ", "is 42."].map((text) => Buffer.from(text));
const upload = await client.uploads.create({ bytes: 15, filename: "notes.txt", mime_type: "text/plain", purpose: "user_data" });
const made = [];
for (const part of parts) made.push(await client.uploads.parts.create(upload.id, { data: await toFile(part, "part") }));
const md5 = createHash("md5").update(Buffer.concat(parts)).digest("hex");
const whole = await client.uploads.complete(upload.id, { part_ids: made.map((part) => part.id), md5 });
assert.equal(whole.status, "completed");
const content = [{ type: "input_file", file_id: whole.file.id }, { type: "input_text", text: "What is the code?" }];
const response = await client.responses.create({ model, input: [{ role: "user", content }], temperature: 0, max_output_tokens: 16 });
assert.equal(response.status === "completed" || response.status === "incomplete", true);

const names = [];
for await (const file of client.files.list({ purpose: "user_data" })) names.push(file.filename);
assert.ok(names.includes("notes.txt"));
assert.equal((await client.files.delete(whole.file.id)).deleted, true);
await assert.rejects(client.files.retrieve(whole.file.id), OpenAI.NotFoundError);
console.log("ok");
