import { useQuery } from "@tanstack/react-query";
import { useEffect, useMemo, useRef, useState, useSyncExternalStore } from "react";
import { api, unwrap } from "../api/client";
import { matchesQuery } from "../api/queries";
import { count } from "../format/number";
import { visible } from "../format/text";
import { newLines } from "../live/newLines";
import { useChoice, useText } from "../router";
import { Icon } from "../ui/Icon";
import { Problem } from "../ui/Problem";
import { LineDetail } from "./LineDetail";
import { LogList } from "./LogList";
import { LogSearch } from "./LogSearch";
import { LogReader } from "./reader";
import { LINES_MAX, place } from "./window";
import { Loading } from "../ui/Unanswered";
import "../styles/observe.css";

const LEVELS = ["info", "debug", "warning", "error"] as const;
const FOLLOW = ["on", "off"] as const;
/** How the address names the coordinator's own lines: no node can be called so. */
const OWN = "@coordinator";

interface Props {
  /** Only of this job. */
  job?: string;
  /** Nodes to choose from. */
  nodes?: readonly string[];
  /** Only of this node: then there is none to choose. */
  node?: string;
}

const NONE: readonly string[] = [];

/** A log, as it grows: its lines, a search, and one line whole. */
export function LogView({ job, nodes = NONE, node: only }: Props) {
  const [chosenNode, setNode] = useText("node");
  const node = only ?? chosenNode;
  const [level, setLevel] = useChoice("level", LEVELS);
  const [follow, setFollow] = useChoice("follow", FOLLOW);
  const [q, setQ] = useText("q");
  const [line, setLine] = useText("line");
  const wanted = useMemo(
    () => ({ job, node: node === "" ? undefined : node === OWN ? "" : node, level }),
    [job, node, level],
  );
  const { reader, window, ready, error } = useLog(wanted);
  const { data: matches, isPlaceholderData } = useQuery(matchesQuery(wanted, q));
  const chosen = line === "" ? null : Number(line);
  const choose = (id: number | null) => {
    setLine(id === null ? "" : String(id));
    if (id !== null && id !== window.lines.at(-1)?.id) setFollow("off");
  };
  const jump = async (id: number) => {
    await reader.until(id);
    choose(id);
  };
  // A search shows what it has found: the newest place, unless one of them is looked at already.
  const sought = useRef(q === "" ? null : q);
  if (q === "") sought.current = null;
  useEffect(() => {
    if (!ready || isPlaceholderData || q === "" || matches === undefined || sought.current === q) return;
    sought.current = q;
    const id = matches.ids.at(-1);
    if (id !== undefined && (chosen === null || !matches.ids.includes(chosen))) void jump(id);
  });
  const found = chosen === null ? undefined : window.lines[place(window.lines, chosen)];
  return (
    <section className="log" aria-label="Log" data-testid="log">
      <div className="log-bar">
        <label className="choice" hidden={only !== undefined}>
          <span>Node</span>
          <select value={node} onChange={(event) => setNode(event.target.value)}>
            <option value="">all</option>
            <option value={OWN}>the coordinator</option>
            {(node === "" || node === OWN || nodes.includes(node) ? nodes : [node, ...nodes]).map((name) => (
              <option key={name} value={name}>
                {visible(name)}
              </option>
            ))}
          </select>
        </label>
        <label className="choice">
          <span>Level</span>
          <select value={level} onChange={(event) => setLevel(event.target.value as typeof level)}>
            <option value="debug">all</option>
            <option value="info">info and above</option>
            <option value="warning">warnings and errors</option>
            <option value="error">errors</option>
          </select>
        </label>
        <LogSearch q={q} onSearch={setQ} matches={q === "" ? undefined : matches} at={chosen} onJump={jump} />
        <button
          type="button"
          className="quiet-button"
          aria-pressed={follow === "on"}
          onClick={() => setFollow(follow === "on" ? "off" : "on")}
        >
          <Icon name="down" /> Follow
        </button>
      </div>
      {error !== null && <Problem error={error} />}
      {ready && window.lines.length === 0 && <p className="panel nothing">Nothing was logged here yet.</p>}
      {!ready && error === null && <Loading />}
      {window.lines.length > 0 && (
        <LogList
          window={window}
          q={q}
          chosen={chosen}
          follows={follow === "on"}
          ofJobs={job === undefined}
          onChoose={choose}
          onOlder={reader.older}
          onFollow={(on) => setFollow(on ? "on" : "off")}
        />
      )}
      {chosen !== null && window.lines.length >= LINES_MAX && chosen < (window.lines[0]?.id ?? 0) && (
        <p className="panel nothing" role="status">
          That line is older than the newest {count(LINES_MAX)}, and a page goes back no further. Choose a node or a
          level, and it may come within reach.
        </p>
      )}
      {found !== undefined && found.id === chosen && <LineDetail line={found} onClose={() => choose(null)} />}
    </section>
  );
}

/** A reader of the lines that are wanted, which goes on as lines come. */
function useLog(wanted: { job?: string; node?: string; level: (typeof LEVELS)[number] }) {
  const [reader, setReader] = useState(() => readerOf(wanted));
  const [of, setOf] = useState(wanted);
  if (of !== wanted) {
    setOf(wanted);
    setReader(readerOf(wanted));
  }
  const news = useSyncExternalStore(newLines.subscribe, newLines.get);
  useEffect(() => reader.newer(), [reader, news]);
  return { reader, ...useSyncExternalStore(reader.subscribe, reader.get) };
}

const readerOf = (wanted: { job?: string; node?: string; level: (typeof LEVELS)[number] }) =>
  new LogReader((ask) => unwrap(api.GET("/api/v1/logs", { params: { query: { ...wanted, ...ask } } })));
