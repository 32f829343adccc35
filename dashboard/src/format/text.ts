/**
 * Replace control and formatting characters by their code points. Names and texts of nodes can contain anything: React
 * escapes markup, but hidden characters can reverse the reading direction ("node-\u202egnp.exe" reads as node-exe.png).
 */
const HIDDEN =
  /[\u0000-\u0008\u000b-\u001f\u007f-\u009f\u00ad\u061c\u200b\u200e\u200f\u202a-\u202e\u2060-\u2069\ufeff]/g;

export function escapeHidden(text: string): string {
  return text.replace(
    HIDDEN,
    (character) => `⟨${character.charCodeAt(0).toString(16).toUpperCase().padStart(4, "0")}⟩`,
  );
}

/** Compare names in natural order: node-9 before node-10. */
export const naturalOrder = new Intl.Collator("en", { numeric: true }).compare;

export const capitalize = (text: string): string => text.charAt(0).toUpperCase() + text.slice(1);
