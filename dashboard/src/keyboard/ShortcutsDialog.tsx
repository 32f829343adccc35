import { Dialog } from "../ui/Dialog";
import { PAGE_KEYS } from "./shortcuts";
import { shortcutSetting, useShortcutSetting } from "./shortcutSetting";
import "../styles/keyboard.css";

const KEYS: [string[], string][] = [
  [["Ctrl", "K"], "Open the command palette"],
  [["/"], "Search on this page"],
  ...[...PAGE_KEYS].map(([key, { text }]): [string[], string] => [["g", key], text]),
  [["?"], "Show keyboard shortcuts"],
  [["Tab"], "Next control; use arrow keys in tabs, heat maps and diagrams"],
  [["Esc"], "Close"],
];

/** Shortcuts that start with one of these keys work without Ctrl. */
const SINGLE: ReadonlySet<string> = new Set(["/", "g", "?"]);

export function ShortcutsDialog({ onClose }: { onClose: () => void }) {
  const on = useShortcutSetting();
  return (
    <Dialog title="Keyboard shortcuts" onClose={onClose}>
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
          onChange={(event) => shortcutSetting.set(event.target.checked)}
        />
        <span>
          Single-key shortcuts
          <small>/, g and ?. If off, only Ctrl K works. Stored in this browser.</small>
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
