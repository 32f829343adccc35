import { formatTime } from "../format/time";
import { useConnection } from "../live/LiveProvider";
import { Icon } from "./Icon";

/** State of the connection; prominent while the data may be outdated. */
export function ConnectionBanner() {
  const { phase, lostAt, wasConnected } = useConnection();
  const since = lostAt === null ? "" : formatTime(lostAt, Date.now());
  return (
    <div className="connection" role="status" data-testid="connection-banner" data-state={phase}>
      {phase === "live" && (
        <>
          <i className="dot" /> Live
        </>
      )}
      {phase === "reconnecting" && (
        <>
          <Icon name="link" /> {wasConnected ? "Reconnecting" : "Connecting"}
          <span className="connection-more">{wasConnected ? ` – data as of ${since}` : " to the coordinator"}</span>
        </>
      )}
      {phase === "unreachable" && (
        <>
          <Icon name="warning" /> Unreachable since {since}
          <span className="connection-more">
            {wasConnected ? " – showing data from that time, retrying" : " – retrying"}
          </span>
        </>
      )}
    </div>
  );
}
