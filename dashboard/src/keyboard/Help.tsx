import { Dialog } from "../ui/Dialog";
import { GOES } from "./keys";
import "../styles/keyboard.css";

const KEYS: [string[], string][] = [
  [["Ctrl", "K"], "Go to a page, a job or a node; change the theme"],
  [["/"], "Search on this page"],
  ...[...GOES].map(([key, { text }]): [string[], string] => [["g", key], text]),
  [["?"], "These keys"],
  [["Tab"], "To the next control; arrow keys walk tabs, heat maps and drawings"],
  [["Esc"], "Close what is open"],
];

export function Help({ onClose }: { onClose: () => void }) {
  return (
    <Dialog title="Keys" onClose={onClose}>
      <dl className="keys" data-testid="keys">
        {KEYS.map(([keys, text]) => (
          <div key={keys.join(" ")}>
            <dt>
              {keys.map((key) => (
                <kbd key={key}>{key}</kbd>
              ))}
            </dt>
            <dd>{text}</dd>
          </div>
        ))}
      </dl>
      <div className="dialog-actions">
        <button type="button" className="button" onClick={onClose} autoFocus>
          Close
        </button>
      </div>
    </Dialog>
  );
}
