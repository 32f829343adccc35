import { clock } from "../format/time";
import { useConnection } from "../live/LiveProvider";
import { Icon } from "./Icon";

/** Says how current the page is. Quiet while live; across the page when what is shown may be out of date. */
export function ConnectionBanner() {
  const { phase, lostAt, known } = useConnection();
  const since = lostAt === null ? "" : clock(lostAt, Date.now());
  return (
    <div className="connection" role="status" data-testid="connection-banner" data-state={phase}>
      {phase === "live" && (
        <>
          <i className="dot" /> Live
        </>
      )}
      {phase === "reconnecting" && (
        <>
          <Icon name="link" /> {known ? "Reconnecting" : "Connecting"}
          <span className="connection-more">{known ? ` – shown as of ${since}` : " to the coordinator"}</span>
        </>
      )}
      {phase === "unreachable" && (
        <>
          <Icon name="warning" /> Unreachable since {since}
          <span className="connection-more">
            {known ? " – what you see is the state of that moment; trying again" : " – trying again"}
          </span>
        </>
      )}
    </div>
  );
}
