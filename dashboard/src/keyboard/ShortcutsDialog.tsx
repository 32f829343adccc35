import { Dialog } from "../ui/Dialog";
import { GOES } from "./keys";
import { singles, useSingles } from "./singles";
import "../styles/keyboard.css";

const KEYS: [string[], string][] = [
  [["Ctrl", "K"], "Go to a page, a job or a node; change the theme"],
  [["/"], "Search on this page"],
  ...[...GOES].map(([key, { text }]): [string[], string] => [["g", key], text]),
  [["?"], "These keys"],
  [["Tab"], "To the next control; arrow keys walk tabs, heat maps and drawings"],
  [["Esc"], "Close what is open"],
];

/** What begins with one of these is a key alone. */
const SINGLE: ReadonlySet<string> = new Set(["/", "g", "?"]);

export function Help({ onClose }: { onClose: () => void }) {
  const on = useSingles();
  return (
    <Dialog title="Keys" onClose={onClose}>
      <dl className="keys" data-testid="keys">
        {KEYS.map(([keys, text]) => (
          <div key={keys.join(" ")} data-off={(!on && SINGLE.has(keys[0] ?? "")) || undefined}>
            <dt>
              {keys.map((key) => (
                <kbd key={key}>{key}</kbd>
              ))}
            </dt>
            <dd>{text}</dd>
          </div>
        ))}
      </dl>
      <label className="keys-choice">
        <input
          type="checkbox"
          data-testid="single-keys"
          checked={on}
          onChange={(event) => singles.set(event.target.checked)}
        />
        <span>
          Keys without Ctrl
          <small>/, g and ? mean something. Off: only Ctrl K does, and leads back here. Remembered in this browser.</small>
        </span>
      </label>
      <div className="dialog-actions">
        <button type="button" className="button" onClick={onClose} autoFocus>
          Close
        </button>
      </div>
    </Dialog>
  );
}
