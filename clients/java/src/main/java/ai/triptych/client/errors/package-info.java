/** Errors of calls. docs/contracts.md lists them with their reasons, and says when to try again. */
package ai.triptych.client.errors;
