import { useEffect, useState, type KeyboardEvent } from "react";
import { Icon } from "../ui/Icon";
import { matchPosition, nextMatch, type Matches } from "./logWindow";

const PAUSE_MS = 250;

interface Props {
  q: string;
  onSearch: (q: string) => void;
  matches: Matches | undefined;
  /** The selected line. */
  at: number | null;
  onJump: (id: number) => void;
}

/** Search field with the number of matches and buttons for the next and previous one. */
export function LogSearch({ q, onSearch, matches, at, onJump }: Props) {
  const [typed, setTyped] = useState(q);
  useEffect(() => {
    const timer = setTimeout(() => typed !== q && onSearch(typed), PAUSE_MS);
    return () => clearTimeout(timer);
  }, [typed, q, onSearch]);
  const go = (step: 1 | -1) => {
    const id = matches === undefined ? null : nextMatch(matches, at, step);
    if (id !== null) onJump(id);
  };
  const key = (event: KeyboardEvent) => {
    if (event.key !== "Enter") return;
    event.preventDefault();
    if (typed === q) go(event.shiftKey ? 1 : -1);
    else onSearch(typed);
  };
  const none = matches === undefined || matches.ids.length === 0;
  return (
    <div className="log-search" role="search">
      <label className="choice">
        <span>Search</span>
        <input
          type="search"
          value={typed}
          maxLength={200}
          onChange={(event) => setTyped(event.target.value)}
          onKeyDown={key}
        />
      </label>
      <span className="log-count" role="status" data-testid="log-count">
        {q !== "" && matches !== undefined && matchPosition(matches, at)}
      </span>
      <button
        type="button"
        className="quiet-button icon-only"
        aria-label="Previous match"
        disabled={none}
        onClick={() => go(-1)}
      >
        <Icon name="up" />
      </button>
      <button
        type="button"
        className="quiet-button icon-only"
        aria-label="Next match"
        disabled={none}
        onClick={() => go(1)}
      >
        <Icon name="down" />
      </button>
    </div>
  );
}
