/**
 * Names and texts come from nodes, so they may be anything. React writes them as text, never as markup; what is left is
 * characters that cannot be seen or that turn the reading direction of what follows ("node-\u202egnp.exe" reads as
 * node-exe.png). These are written out.
 */
const HIDDEN =
  /[\u0000-\u0008\u000b-\u001f\u007f-\u009f\u00ad\u061c\u200b\u200e\u200f\u202a-\u202e\u2060-\u2069\ufeff]/g;

export function visible(text: string): string {
  return text.replace(
    HIDDEN,
    (character) => `⟨${character.charCodeAt(0).toString(16).toUpperCase().padStart(4, "0")}⟩`,
  );
}

/** node-9 before node-10. */
export const byNumber = new Intl.Collator("en", { numeric: true }).compare;
