// Reads server-sent events from a stream of bytes.

/**
 * Yields the data of each event, as text. Bytes may be cut anywhere: within a character, within a line ending, within a field.
 * An event that the stream's end cuts off is not yielded. Leaving the loop early cancels the stream.
 *
 * @param {ReadableStream<Uint8Array>} stream
 */
export async function* events(stream) {
  const reader = stream.getReader();
  const lines = new Lines();
  let data = [];
  try {
    for (;;) {
      const { done, value } = await reader.read();
      if (done) return;
      for (const line of lines.push(value)) {
        if (line !== "") {
          const text = dataOf(line);
          if (text !== null) data.push(text);
        } else if (data.length) {
          yield data.join("\n");
          data = [];
        }
      }
    }
  } finally {
    // The stream may have failed, and then it cannot be cancelled.
    await reader.cancel().catch(() => {});
  }
}

/** The value of a `data` field, or null for any other line. */
function dataOf(line) {
  if (line === "data") return "";
  if (!line.startsWith("data:")) return null;
  return line.startsWith("data: ") ? line.slice(6) : line.slice(5);
}

/** Splits bytes into lines that end with LF, CR or CRLF. */
class Lines {
  #decoder = new TextDecoder(); // it also drops a byte order mark
  #rest = "";
  #endedWithCr = false;

  /** The lines that these bytes complete. */
  push(bytes) {
    const text = this.#decoder.decode(bytes, { stream: true });
    if (text === "") return [];
    // The LF of a CRLF that was cut in two.
    const isEnded = this.#endedWithCr && text[0] === "\n";
    this.#endedWithCr = text.endsWith("\r");
    const lines = (this.#rest + (isEnded ? text.slice(1) : text)).split(/\r\n|\r|\n/);
    this.#rest = lines.pop();
    return lines;
  }
}
