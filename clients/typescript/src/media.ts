import { create, type MessageInitShape } from "@bufbuild/protobuf";
import { type MediaItem, MediaItemSchema, Modality } from "./gen/triptych/v1/common_pb.js";
import {
  type ChatMessage,
  ChatMessageSchema,
  type Choice,
  ContentPartSchema,
} from "./gen/triptych/v1/generation_pb.js";

/** Fields of a media item beside its content: uuid, format, detail, processorOptions. */
export type MediaOptions = Omit<
  Exclude<MessageInitShape<typeof MediaItemSchema>, { $typeName: string }>,
  "modality" | "source"
>;

function media(modality: Modality, source: Uint8Array | URL | string, options: MediaOptions): MediaItem {
  const place =
    source instanceof Uint8Array
      ? { case: "data" as const, value: source }
      : { case: "url" as const, value: String(source) };
  return create(MediaItemSchema, { ...options, modality, source: place });
}

/** A picture: the bytes of its file (PNG, JPEG ...), never decoded pixels, or its address (https: or data:). */
export function image(source: Uint8Array | URL | string, options: MediaOptions = {}): MediaItem {
  return media(Modality.IMAGE, source, options);
}

/** A sound: the bytes of its file (WAV, MP3 ...), never decoded samples, or its address. */
export function audio(source: Uint8Array | URL | string, options: MediaOptions = {}): MediaItem {
  return media(Modality.AUDIO, source, options);
}

/** A video: the bytes of its file (MP4 ...), or its address. */
export function video(source: Uint8Array | URL | string, options: MediaOptions = {}): MediaItem {
  return media(Modality.VIDEO, source, options);
}

/** The user's turn: texts and media, in the order in which the model shall see them. */
export function userMessage(...parts: (string | MediaItem)[]): ChatMessage {
  return message("user", parts);
}

/** Instructions to the model, before the first turn. */
export function systemMessage(text: string): ChatMessage {
  return message("system", [text]);
}

/** A choice of an answer as the assistant's turn, to go on with the conversation. */
export function assistantMessage(choice: Choice): ChatMessage {
  const turn = message("assistant", choice.text ? [choice.text] : []);
  if (choice.reasoning) turn.reasoning = choice.reasoning;
  turn.toolCalls = choice.toolCalls;
  return turn;
}

/** The result of a tool call of the assistant's turn before. */
export function toolMessage(toolCallId: string, result: string): ChatMessage {
  const turn = message("tool", [result]);
  turn.toolCallId = toolCallId;
  return turn;
}

function message(role: string, parts: (string | MediaItem)[]): ChatMessage {
  const content = parts.map((part) => {
    const value =
      typeof part === "string" ? { case: "text" as const, value: part } : { case: "media" as const, value: part };
    return create(ContentPartSchema, { part: value });
  });
  return create(ChatMessageSchema, { role, content });
}
