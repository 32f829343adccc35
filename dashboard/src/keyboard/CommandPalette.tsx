import { useQuery } from "@tanstack/react-query";
import { useState, type KeyboardEvent } from "react";
import { jobsQuery } from "../queries/jobs";
import { sessionQuery } from "../queries/session";
import { fleetQuery } from "../queries/fleet";
import { escapeHidden } from "../format/text";
import { jobPath, navigate, newJobPath, nodePath, splitJobPath } from "../router/router";
import { splitJobsQuery } from "../split/queries";
import { Dialog } from "../ui/Dialog";
import { NAV_ITEMS } from "../ui/Nav";
import { setTheme } from "../ui/theme";
import { filterEntries, type PaletteEntry } from "./paletteEntries";
import "../styles/keyboard.css";

interface Props {
  onClose: () => void;
  onHelp: () => void;
}

/** Dialog to go to a page, job or node, or to change the theme. */
export function CommandPalette({ onClose, onHelp }: Props) {
  const entries = useEntries(onHelp);
  const [typed, setTyped] = useState("");
  const [at, setAt] = useState(0);
  const found = filterEntries(entries, typed);
  const chosen = Math.min(at, Math.max(0, found.length - 1));
  const run = (entry: PaletteEntry | undefined) => {
    if (entry === undefined) return;
    onClose();
    entry.run();
  };
  const walk = (event: KeyboardEvent) => {
    if (event.key === "Escape") {
      event.preventDefault(); // by default it would only empty a search field with text
      onClose();
      return;
    }
    const step = event.key === "ArrowDown" ? 1 : event.key === "ArrowUp" ? -1 : 0;
    if (event.key === "Enter") run(found[chosen]);
    if (step !== 0 && found.length > 0) setAt((chosen + step + found.length) % found.length);
    if (step !== 0 || event.key === "Enter") event.preventDefault();
  };
  return (
    <Dialog title="Go to" onClose={onClose}>
      <input
        type="search"
        role="combobox"
        aria-label="Page, job, node or theme"
        placeholder="Page, job, node or theme"
        aria-expanded="true"
        aria-controls="palette-list"
        aria-activedescendant={found.length > 0 ? `palette-${chosen}` : undefined}
        autoComplete="off"
        spellCheck={false}
        autoFocus
        data-testid="palette"
        value={typed}
        onChange={(event) => {
          setTyped(event.target.value);
          setAt(0);
        }}
        onKeyDown={walk}
      />
      <ul className="palette" role="listbox" id="palette-list" aria-label="Results">
        {found.map((entry, index) => (
          <li
            key={entry.id}
            id={`palette-${index}`}
            role="option"
            aria-selected={index === chosen}
            onClick={() => run(entry)}
            onPointerMove={() => setAt(index)}
          >
            <bdi>{escapeHidden(entry.text)}</bdi> <small>{entry.kind}</small>
          </li>
        ))}
      </ul>
      <p className="hint" role="status">
        {found.length === 0 ? "No results" : ""}
      </p>
    </Dialog>
  );
}

/** Return pages, jobs, nodes, and other commands. */
function useEntries(onHelp: () => void): PaletteEntry[] {
  const { data: role } = useQuery(sessionQuery);
  const { data: jobs = [] } = useQuery(jobsQuery);
  const { data: splitJobs = [] } = useQuery(splitJobsQuery);
  const { data: nodes = [] } = useQuery(fleetQuery);
  const to = (text: string, kind: string, href: string): PaletteEntry => ({
    id: href,
    text,
    kind,
    run: () => navigate(href),
  });
  const themes = (["light", "dark", "system"] as const).map((theme) => ({
    id: `theme ${theme}`,
    text: theme === "system" ? "System theme" : `${theme === "light" ? "Light" : "Dark"} theme`,
    kind: "theme",
    run: () => setTheme(theme),
  }));
  return [
    ...NAV_ITEMS.map(({ text, href }) => to(text, "page", href)),
    ...(role === "operator" ? [to("New job", "page", newJobPath())] : []),
    ...jobs.map(({ name, title }) => to(title === name ? name : `${name} · ${title}`, "job", jobPath(name))),
    ...splitJobs.map(({ name }) => to(name, "split job", splitJobPath(name))),
    ...nodes.map(({ name }) => to(name, "node", nodePath(name))),
    { id: "keys", text: "Keyboard shortcuts", kind: "help", run: onHelp },
    ...themes,
  ];
}
