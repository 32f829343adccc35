import { useState } from "react";
import { Icon } from "./Icon";

/** Puts a text onto the clipboard, and says so. */
export function Copy({ text, what }: { text: string; what: string }) {
  const [said, setSaid] = useState("");
  const copy = async () => setSaid((await put(text)) ? "Copied" : "Select it, and copy it by hand");
  return (
    <span className="copy">
      <button type="button" className="quiet-button" aria-label={`Copy ${what}`} onClick={() => void copy()}>
        <Icon name="copy" /> Copy
      </button>
      <span role="status" className="faint">
        {said}
      </span>
    </span>
  );
}

/** Over plain HTTP from another machine a browser has no clipboard for scripts. */
async function put(text: string): Promise<boolean> {
  try {
    await navigator.clipboard.writeText(text);
    return true;
  } catch {
    return false;
  }
}
