import { createServer, type IncomingMessage, type ServerResponse } from "node:http";
import type { AddressInfo } from "node:net";
import type { TestContext } from "node:test";

export interface Seen {
  body: Record<string, unknown>;
  headers: IncomingMessage["headers"];
}

/** A gateway that answers all requests in one way, until the test ends. */
export async function gateway(
  t: TestContext,
  answer: (response: ServerResponse) => void,
): Promise<{ url: string; seen: Seen[] }> {
  const seen: Seen[] = [];
  const server = createServer((request, response) => {
    let body = "";
    request.setEncoding("utf8").on("data", (part: string) => (body += part));
    request.on("end", () => {
      seen.push({ body: JSON.parse(body) as Seen["body"], headers: request.headers });
      answer(response);
    });
  });
  await new Promise<void>((resolve) => server.listen(0, "127.0.0.1", resolve));
  t.after(() => {
    server.closeAllConnections();
    server.close();
  });
  return { url: `http://127.0.0.1:${(server.address() as AddressInfo).port}`, seen };
}

/** An event with one choice. */
export const chunk = (choice: object, more: object = {}): string =>
  `data: ${JSON.stringify({ id: "chatcmpl-r1", model: "m", choices: [{ index: 0, ...choice }], ...more })}\n\n`;

/** Answers with these events. */
export function streaming(events: string): (response: ServerResponse) => void {
  return (response) => {
    response.writeHead(200, { "content-type": "text/event-stream" });
    response.end(events);
  };
}
