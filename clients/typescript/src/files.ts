import { readFile } from "node:fs/promises";
import type { MediaItem } from "./gen/triptych/v1/common_pb.js";
import { audio, image, type MediaOptions, video } from "./media.js";

/** A picture from a file, which travels in the request. A request has at most 64 MiB. */
export async function imageFile(path: string, options?: MediaOptions): Promise<MediaItem> {
  return image(await readFile(path), options);
}

/** A sound from a file, as `imageFile`. */
export async function audioFile(path: string, options?: MediaOptions): Promise<MediaItem> {
  return audio(await readFile(path), options);
}

/** A video from a file, as `imageFile`. */
export async function videoFile(path: string, options?: MediaOptions): Promise<MediaItem> {
  return video(await readFile(path), options);
}
