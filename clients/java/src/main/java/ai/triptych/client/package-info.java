/** Client of a Triptych frontend. {@link ai.triptych.client.TriptychClient} is where to begin. */
package ai.triptych.client;
