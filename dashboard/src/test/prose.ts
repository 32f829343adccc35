/** Checks of the style of comments and of the texts that users see. */

/** Openings that a comment must not have: it names the thing, or starts with a verb. */
const OPENING = /^(What|Who|Whom|Whose|Whoever|Whether|That which|Where|How|Which|Those)\b/;
const WORDS = /\b(nobody|somebody|anybody|whoever|whomever|notes?)\b/i;

const COMMENT = /\/\*\*?[\s\S]*?\*\/|(?<=^|\s)\/\/[^\n]*/g;
/** Texts between tags and values of attributes that are shown or read out. */
const SHOWN = />([^<>{}\n]*[a-z]{3}[^<>{}\n]*)<\/|(?:title|label|placeholder|aria-label|verb|text|empty)=?:? ?"([^"]+)"/g;

/** Return the comments and shown texts of a source file that break a rule. */
export function proseViolations(source: string): string[] {
  const comments = [...source.matchAll(COMMENT)].map(([comment]) =>
    comment.replace(/^\/\*\*?|\*\/$|^\/\//g, "").replace(/\s*\n\s*\*?\s*/g, " ").trim(),
  );
  const shown = [...source.matchAll(SHOWN)].map(([, text, value]) => (text ?? value ?? "").trim());
  return [...comments.filter((comment) => OPENING.test(comment)), ...[...comments, ...shown].filter((text) => WORDS.test(text))];
}
