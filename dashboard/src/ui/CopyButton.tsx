import { useState } from "react";
import { Icon } from "./Icon";

/** Button that copies a text to the clipboard. */
export function CopyButton({ text, what }: { text: string; what: string }) {
  const [said, setSaid] = useState("");
  const copy = async () => setSaid((await writeClipboard(text)) ? "Copied" : "Copy failed: select the text instead");
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

/** Browsers deny access to the clipboard on pages over plain HTTP, except from localhost. */
async function writeClipboard(text: string): Promise<boolean> {
  try {
    await navigator.clipboard.writeText(text);
    return true;
  } catch {
    return false;
  }
}
