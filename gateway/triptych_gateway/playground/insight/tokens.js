// Tokens with their log probabilities: tinted by doubt, with a card of alternatives on hover and by the arrow keys.

import { byId, h } from "../dom.js";

/** Key -> the token that it moves to, from another one. */
const NEIGHBOURS = {
  ArrowRight: (span) => span.nextElementSibling,
  ArrowLeft: (span) => span.previousElementSibling,
  Home: (span) => span.parentElement.firstElementChild,
  End: (span) => span.parentElement.lastElementChild,
};

/** Show tokens in an element; those that it has stay. */
export function showTokens(element, tokens) {
  element.decoder ??= new TextDecoder();
  element.numShown ??= 0;
  for (const token of tokens.slice(element.numShown)) {
    // A character may be spread over several tokens. The last of them shows it.
    const text = token.bytes ? element.decoder.decode(Uint8Array.from(token.bytes), { stream: true }) : token.token;
    const span = h("span", { class: text ? "token" : "token partial", tabindex: element.numShown ? -1 : 0 }, text || "·");
    span.style.setProperty("--doubt", (1 - Math.exp(token.logprob)).toFixed(3));
    span.token = token;
    element.append(span);
    element.numShown += 1;
  }
}

/** Connect the card to all tokens below an element. Called once. */
export function wireTokens(root) {
  const card = byId("token-card");
  const hide = () => { card.hidden = true; };
  const show = ({ target }) => (target.token ? showCard(card, target) : hide());
  root.addEventListener("mouseover", show);
  root.addEventListener("mouseleave", hide);
  root.addEventListener("focusin", show);
  root.addEventListener("focusout", hide);
  root.addEventListener("scroll", hide, true);
  root.addEventListener("keydown", (event) => {
    if (!event.target.token) return;
    if (event.key === "Escape" && !card.hidden) {
      hide();
      event.stopPropagation(); // it would stop the answer
    }
    const next = NEIGHBOURS[event.key]?.(event.target);
    if (!next) return;
    event.preventDefault();
    event.target.tabIndex = -1;
    next.tabIndex = 0;
    next.focus();
  });
}

function showCard(card, span) {
  const { token } = span;
  const others = token.top_logprobs ?? [];
  const rows = (others.some((other) => other.token === token.token) ? others : [token, ...others]).map((one) => row(one, token));
  card.replaceChildren(
    h("p", { class: "card-title" }, h("code", {}, visible(token)), ` ${percent(token.logprob)}`),
    h("p", { class: "muted" }, `log probability ${token.logprob.toFixed(4)}`),
    h("table", {}, h("tbody", {}, rows)),
  );
  card.hidden = false;
  span.setAttribute("aria-describedby", card.id);
  place(card, span);
}

function row(one, chosen) {
  const bar = h("span", { class: "bar" });
  bar.style.width = `${Math.max(Math.exp(one.logprob) * 100, 1)}%`;
  return h(
    "tr",
    { class: one.token === chosen.token ? "chosen" : null },
    h("td", {}, h("code", {}, visible(one))),
    h("td", { class: "number" }, percent(one.logprob)),
    h("td", { class: "bars" }, bar),
  );
}

/** The text of a token, with characters that cannot be seen made visible. */
function visible({ token, bytes }) {
  if (token.includes("\uFFFD") && bytes) return bytes.map((byte) => byte.toString(16).padStart(2, "0").toUpperCase()).join(" ");
  return token.replaceAll(" ", "␣").replaceAll("\n", "↵").replaceAll("\t", "⇥") || "(empty)";
}

function percent(logprob) {
  const value = Math.exp(logprob) * 100;
  if (value >= 99.95) return "100 %";
  return value < 0.1 ? "< 0.1 %" : `${value.toFixed(1)} %`;
}

/** Below the token, or above it where there is no room below. */
function place(card, span) {
  const box = span.getClientRects()[0];
  const { width, height } = card.getBoundingClientRect();
  const left = Math.max(8, Math.min(box.left, innerWidth - width - 8));
  const top = box.bottom + 6 + height < innerHeight ? box.bottom + 6 : Math.max(8, box.top - height - 6);
  card.style.left = `${left}px`;
  card.style.top = `${top}px`;
}
