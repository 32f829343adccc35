import { useEffect, useLayoutEffect, useRef, useState, type KeyboardEvent } from "react";
import type { LogLine } from "../api/types";
import { escapeHidden } from "../format/text";
import { LevelBadge } from "./LevelBadge";
import { splitMatches, lineIndex, type LogWindow } from "./logWindow";
import { visibleRange } from "../ui/useVirtualRows";
import { Timestamp } from "../ui/Timestamp";

const ROW = 26;
const NEAR = 3 * ROW;
const STEPS: Record<string, number> = { ArrowUp: -1, ArrowDown: 1, PageUp: -15, PageDown: 15 };

interface Props {
  window: LogWindow;
  q: string;
  chosen: number | null;
  /** True if new lines are scrolled into view. */
  follows: boolean;
  /** True if the lines are of several jobs. */
  ofJobs: boolean;
  onChoose: (id: number) => void;
  onOlder: () => Promise<void>;
  onFollow: (on: boolean) => void;
}

/** List of log lines, of which only those on the screen are rendered. */
export function LogList({ window: { lines, older }, q, chosen, follows, ofJobs, onChoose, onOlder, onFollow }: Props) {
  const list = useRef<HTMLDivElement>(null);
  const [top, setTop] = useState(0);
  const height = useHeight(list);
  const first = lines[0]?.id ?? 0;
  const before = useRef({ first, lines });
  const index = chosen === null ? -1 : lineIndex(lines, chosen);
  const shown = lines[index]?.id === chosen ? index : -1;

  // Older lines that are inserted must not move the visible ones.
  useLayoutEffect(() => {
    const moved = lineIndex(lines, before.current.first);
    if (list.current !== null && !follows && first < before.current.first && moved > 0)
      list.current.scrollTop += moved * ROW;
    before.current = { first, lines };
  }, [first, lines, follows]);
  useLayoutEffect(() => {
    if (list.current !== null && follows) list.current.scrollTop = lines.length * ROW;
  }, [lines, follows, height]);
  useLayoutEffect(() => {
    const box = list.current;
    if (box === null || shown < 0) return;
    const at = shown * ROW;
    if (at < box.scrollTop || at + ROW > box.scrollTop + box.clientHeight)
      box.scrollTop = at - box.clientHeight / 2;
    // only when another line is chosen, so that users can scroll away from it
  }, [chosen, shown < 0]);

  const scrolled = () => {
    const box = list.current;
    if (box === null) return;
    setTop(box.scrollTop);
    if (box.scrollTop < NEAR && older) void onOlder();
    const atEnd = box.scrollHeight - box.scrollTop - box.clientHeight < ROW;
    if (follows && !atEnd && box.scrollTop < before.current.lines.length * ROW - box.clientHeight - ROW) onFollow(false);
  };
  const walk = (event: KeyboardEvent) => {
    const step = STEPS[event.key];
    const last = lines.length - 1;
    const from = shown < 0 ? last + 1 : shown;
    const to = event.key === "Home" ? 0 : event.key === "End" ? last : step === undefined ? null : from + step;
    if (to === null) return;
    event.preventDefault();
    const line = lines[Math.min(Math.max(to, 0), last)];
    if (line !== undefined) onChoose(line.id);
  };
  const [from, to] = visibleRange(top, height, ROW, lines.length);
  return (
    <div
      ref={list}
      className="log-list panel"
      role="listbox"
      aria-label="Log lines"
      aria-activedescendant={shown >= from && shown < to ? `line-${chosen}` : undefined}
      tabIndex={0}
      data-testid="log-list"
      data-lines={lines.length}
      onScroll={scrolled}
      onKeyDown={walk}
    >
      <div role="presentation" style={{ height: lines.length * ROW }}>
        <div role="presentation" style={{ transform: `translateY(${from * ROW}px)` }}>
          {lines.slice(from, to).map((line, offset) => (
            <Row
              key={line.id}
              line={line}
              q={q}
              chosen={line.id === chosen}
              at={from + offset + 1}
              of={lines.length}
              ofJobs={ofJobs}
              onChoose={onChoose}
            />
          ))}
        </div>
      </div>
    </div>
  );
}

interface RowProps {
  line: LogLine;
  q: string;
  chosen: boolean;
  at: number;
  of: number;
  /** True if each line shows its job. */
  ofJobs: boolean;
  onChoose: (id: number) => void;
}

function Row({ line, q, chosen, at, of, ofJobs, onChoose }: RowProps) {
  return (
    <div
      id={`line-${line.id}`}
      className="log-line"
      role="option"
      aria-selected={chosen}
      aria-posinset={at}
      aria-setsize={of}
      data-level={line.level}
      onClick={() => onChoose(line.id)}
    >
      <Timestamp at={line.at} />
      <LevelBadge level={line.level} />
      <span className="log-who">
        <bdi>{escapeHidden(line.node || "coordinator")}</bdi>
      </span>
      <span className="log-text">
        {line.round !== null && (
          <span className="log-round" title={`round ${line.round}`}>
            r{line.round}{" "}
          </span>
        )}
        <bdi>
          {splitMatches(escapeHidden(line.text.replaceAll("\n", " ⏎ ")), q).map((piece, number) =>
            number % 2 === 1 ? <mark key={number}>{piece}</mark> : piece,
          )}
        </bdi>
      </span>
      {ofJobs && <span className="log-job">{escapeHidden(line.job)}</span>}
    </div>
  );
}

/** Return the height of the box (px). */
function useHeight(box: React.RefObject<HTMLElement | null>): number {
  const [height, setHeight] = useState(600);
  useEffect(() => {
    if (box.current === null) return;
    const observer = new ResizeObserver(([entry]) => entry && setHeight(entry.contentRect.height));
    observer.observe(box.current);
    return () => observer.disconnect();
  }, [box]);
  return height;
}
