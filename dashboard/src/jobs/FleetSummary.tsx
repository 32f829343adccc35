import { useQuery } from "@tanstack/react-query";
import { fleetQuery, healthQuery, leaderQuery, trafficSinceQuery } from "../queries/fleet";
import type { Job, Leader } from "../api/types";
import { formatBytes, formatCount, plural, UNKNOWN } from "../format/number";
import { Stat } from "../ui/Stat";
import { useConnection } from "../live/LiveProvider";
import { useNow } from "../live/useNow";
import { Icon } from "../ui/Icon";
import { StateBadge } from "../ui/StateBadge";
import { countFleet, startOfDay, countActive } from "./fleetCounts";
import { Term } from "../ui/Term";

/** Summary of all nodes, jobs, traffic and the coordinator's health. */
export function FleetSummary({ jobs }: { jobs: Job[] }) {
  const { data: nodes } = useQuery(fleetQuery);
  return (
    <dl className="panel fleet" data-testid="fleet" aria-label="Fleet">
      <Stat name="Nodes" term="node state">
        <span className="fleet-states">
          {nodes === undefined
            ? UNKNOWN
            : countFleet(nodes).map(([state, number]) => (
                <span key={state} data-testid={`fleet-${state}`} data-none={number === 0 || undefined}>
                  <b className="stat-value">{formatCount(number)}</b>
                  <StateBadge state={state} />
                </span>
              ))}
        </span>
      </Stat>
      <Stat name="Active jobs" more={`of ${formatCount(jobs.length)}`}>
        <span className="stat-value">{formatCount(countActive(jobs))}</span>
      </Stat>
      <TrafficToday />
      <CoordinatorHealth />
    </dl>
  );
}

/** Bytes of all jobs since midnight in this browser's time zone. */
function TrafficToday() {
  const midnight = startOfDay(useNow()).toISOString();
  const { data } = useQuery(trafficSinceQuery(midnight));
  const { up_bytes = 0, down_bytes = 0 } = data ?? {};
  const parts = (
    <>
      <Icon name="up" />
      {formatBytes(up_bytes)} <Icon name="down" />
      {formatBytes(down_bytes)}
    </>
  );
  return (
    <Stat name="Traffic today" term="traffic" more={data && parts}>
      <span className="stat-value" data-testid="fleet-today">
        {data === undefined ? UNKNOWN : formatBytes(up_bytes + down_bytes)}
      </span>
    </Stat>
  );
}

function CoordinatorHealth() {
  const { phase } = useConnection();
  const { data: problem } = useQuery(healthQuery);
  const { data: leader } = useQuery(leaderQuery);
  const known = phase === "live" ? problem : undefined;
  const state = known === undefined ? "unknown" : known === "" ? "ready" : "problem";
  return (
    <Stat
      name="Coordinator"
      term="coordinator"
      more={
        <>
          {HEALTH[state].more || known}
          {leader && (
            <span className="leader" data-testid="fleet-leader">
              <Term of="leader, follower">leader</Term>: {leader.address}, term {formatCount(leader.term)}
              {leader.followers.length > 0 && `; ${followersText(leader)}`}
            </span>
          )}
        </>
      }
    >
      <span className={`stat-value health ${state}`} data-testid="fleet-health" data-state={state}>
        <Icon name={HEALTH[state].icon} /> {HEALTH[state].label}
      </span>
    </Stat>
  );
}

function followersText({ followers }: Leader): string {
  const jobs = followers.reduce((sum, one) => sum + one.jobs, 0);
  return `${plural(jobs, "job")} on ${plural(followers.length, "follower")}`;
}

const HEALTH = {
  ready: { label: "Ready", icon: "done", more: "all jobs restored, enough disk space" },
  problem: { label: "Not ready", icon: "warning", more: "" },
  unknown: { label: "Unknown", icon: "link", more: "no answer yet" },
} as const;
