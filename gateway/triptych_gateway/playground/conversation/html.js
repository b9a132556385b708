// The one place where text becomes HTML. DOMPurify reads it, and the page's policy lets no other script do so.

import DOMPurify from "../vendor/purify.js";

const RULES = {
  ALLOWED_TAGS: [
    "a", "blockquote", "br", "code", "em", "h3", "h4", "h5", "h6", "hr", "li", "ol", "p", "pre", "s", "span", "strong",
    "table", "tbody", "td", "th", "thead", "tr", "ul",
  ],
  ALLOWED_ATTR: ["class", "href", "start"],
  ADD_URI_SAFE_ATTR: ["start"],
  ALLOWED_URI_REGEXP: /^(https?:\/\/|mailto:)/i,
  ALLOW_ARIA_ATTR: false,
  ALLOW_DATA_ATTR: false,
  RETURN_DOM_FRAGMENT: true,
};

/** The nodes of a text in HTML, without all that these rules do not name. */
export function fragmentOf(html) {
  return DOMPurify.sanitize(html, RULES);
}
