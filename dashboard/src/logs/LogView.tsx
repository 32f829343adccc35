import { useQuery } from "@tanstack/react-query";
import { useEffect, useMemo, useRef, useState, useSyncExternalStore } from "react";
import { api, unwrap } from "../api/client";
import { logMatchesQuery } from "./queries";
import { formatCount } from "../format/number";
import { escapeHidden } from "../format/text";
import { logNotifier } from "../live/logNotifier";
import { useChoiceParam, useTextParam } from "../router/router";
import { Icon } from "../ui/Icon";
import { ErrorMessage } from "../ui/ErrorMessage";
import { LogLineDetail } from "./LogLineDetail";
import { LogList } from "./LogList";
import { LogSearch } from "./LogSearch";
import { LogPager } from "./logPager";
import { LINES_MAX, lineIndex } from "./logWindow";
import { Loading } from "../ui/QueryStatus";
import "../styles/observe.css";

const LEVELS = ["info", "debug", "warning", "error"] as const;
const FOLLOW = ["on", "off"] as const;
/** The coordinator in the address; no node can have this name. */
const OWN = "@coordinator";

interface Props {
  /** Show only lines of this job. */
  job?: string;
  /** Options of the node filter. */
  nodes?: readonly string[];
  /** Show only lines of this node, without a node filter. */
  node?: string;
}

const NONE: readonly string[] = [];

/** Log with filters, search and details of a line. */
export function LogView({ job, nodes = NONE, node: only }: Props) {
  const [chosenNode, setNode] = useTextParam("node");
  const node = only ?? chosenNode;
  const [level, setLevel] = useChoiceParam("level", LEVELS);
  const [follow, setFollow] = useChoiceParam("follow", FOLLOW);
  const [q, setQ] = useTextParam("q");
  const [line, setLine] = useTextParam("line");
  const wanted = useMemo(
    () => ({ job, node: node === "" ? undefined : node === OWN ? "" : node, level }),
    [job, node, level],
  );
  const { reader, window, ready, error } = useLog(wanted);
  const { data: matches, isPlaceholderData } = useQuery(logMatchesQuery(wanted, q));
  const chosen = line === "" ? null : Number(line);
  const choose = (id: number | null) => {
    setLine(id === null ? "" : String(id));
    if (id !== null && id !== window.lines.at(-1)?.id) setFollow("off");
  };
  const jump = async (id: number) => {
    await reader.loadUntil(id);
    choose(id);
  };
  // A search selects the newest match, unless a match is selected.
  const sought = useRef(q === "" ? null : q);
  if (q === "") sought.current = null;
  useEffect(() => {
    if (!ready || isPlaceholderData || q === "" || matches === undefined || sought.current === q) return;
    sought.current = q;
    const id = matches.ids.at(-1);
    if (id !== undefined && (chosen === null || !matches.ids.includes(chosen))) void jump(id);
  });
  const found = chosen === null ? undefined : window.lines[lineIndex(window.lines, chosen)];
  return (
    <section className="log" aria-label="Log" data-testid="log">
      <div className="log-bar">
        <label className="choice" hidden={only !== undefined}>
          <span>Node</span>
          <select value={node} onChange={(event) => setNode(event.target.value)}>
            <option value="">all</option>
            <option value={OWN}>coordinator</option>
            {(node === "" || node === OWN || nodes.includes(node) ? nodes : [node, ...nodes]).map((name) => (
              <option key={name} value={name}>
                {escapeHidden(name)}
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
      {error !== null && <ErrorMessage error={error} />}
      {ready && window.lines.length === 0 && <p className="panel nothing">No log lines yet</p>}
      {!ready && error === null && <Loading />}
      {window.lines.length > 0 && (
        <LogList
          window={window}
          q={q}
          chosen={chosen}
          follows={follow === "on"}
          ofJobs={job === undefined}
          onChoose={choose}
          onOlder={reader.loadOlder}
          onFollow={(on) => setFollow(on ? "on" : "off")}
        />
      )}
      {chosen !== null && window.lines.length >= LINES_MAX && chosen < (window.lines[0]?.id ?? 0) && (
        <p className="panel nothing" role="status">
          This line is older than the newest {formatCount(LINES_MAX)} lines, which are the limit. Filter by node or level to
          see older lines.
        </p>
      )}
      {found !== undefined && found.id === chosen && <LogLineDetail line={found} onClose={() => choose(null)} />}
    </section>
  );
}

/** Return a pager of the lines that match the filter, which follows new lines. */
function useLog(wanted: { job?: string; node?: string; level: (typeof LEVELS)[number] }) {
  const [reader, setReader] = useState(() => readerOf(wanted));
  const [of, setOf] = useState(wanted);
  if (of !== wanted) {
    setOf(wanted);
    setReader(readerOf(wanted));
  }
  const news = useSyncExternalStore(logNotifier.subscribe, logNotifier.get);
  useEffect(() => reader.loadNewer(), [reader, news]);
  return { reader, ...useSyncExternalStore(reader.subscribe, reader.get) };
}

const readerOf = (wanted: { job?: string; node?: string; level: (typeof LEVELS)[number] }) =>
  new LogPager((ask) => unwrap(api.GET("/api/v1/logs", { params: { query: { ...wanted, ...ask } } })));
