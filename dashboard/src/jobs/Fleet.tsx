import { useQuery } from "@tanstack/react-query";
import { fleetQuery, healthQuery, ownerQuery, todayQuery } from "../api/queries";
import type { Job, Owner } from "../api/types";
import { bytes, count, plural, UNKNOWN } from "../format/number";
import { Stat } from "../job/Headline";
import { useConnection } from "../live/LiveProvider";
import { useNow } from "../live/useNow";
import { Icon } from "../ui/Icon";
import { State } from "../ui/State";
import { countFleet, midnightOf, underWay } from "./fleet";

/** All nodes, jobs and bytes, and how the coordinator does, in one strip. */
export function Fleet({ jobs }: { jobs: Job[] }) {
  const { data: nodes } = useQuery(fleetQuery);
  return (
    <dl className="panel fleet" data-testid="fleet" aria-label="Fleet">
      <Stat name="Nodes">
        <span className="fleet-states">
          {nodes === undefined
            ? UNKNOWN
            : countFleet(nodes).map(([state, number]) => (
                <span key={state} data-testid={`fleet-${state}`} data-none={number === 0 || undefined}>
                  <b className="stat-value">{count(number)}</b>
                  <State state={state} />
                </span>
              ))}
        </span>
      </Stat>
      <Stat name="Jobs under way" more={`of ${count(jobs.length)}`}>
        <span className="stat-value">{count(underWay(jobs))}</span>
      </Stat>
      <Today />
      <Health />
    </dl>
  );
}

/** What all jobs have moved since midnight, as this browser counts its days. */
function Today() {
  const midnight = midnightOf(useNow()).toISOString();
  const { data } = useQuery(todayQuery(midnight));
  const { up_bytes = 0, down_bytes = 0 } = data ?? {};
  const parts = (
    <>
      <Icon name="up" />
      {bytes(up_bytes)} <Icon name="down" />
      {bytes(down_bytes)}
    </>
  );
  return (
    <Stat name="Bytes today" more={data && parts}>
      <span className="stat-value" data-testid="fleet-today">
        {data === undefined ? UNKNOWN : bytes(up_bytes + down_bytes)}
      </span>
    </Stat>
  );
}

function Health() {
  const { phase } = useConnection();
  const { data: trouble } = useQuery(healthQuery);
  const { data: owner } = useQuery(ownerQuery);
  const known = phase === "live" ? trouble : undefined;
  const state = known === undefined ? "unknown" : known === "" ? "ready" : "trouble";
  return (
    <Stat
      name="Coordinator"
      more={
        <>
          {WORDS[state].more || known}
          {owner && (
            <span className="owner" data-testid="fleet-owner">
              led by {owner.address}, taken {owner.epoch === 1 ? "once" : `${count(owner.epoch)} times`}
              {owner.deputies.length > 0 && `; ${shared(owner)}`}
            </span>
          )}
        </>
      }
    >
      <span className={`stat-value health ${state}`} data-testid="fleet-health" data-state={state}>
        <Icon name={WORDS[state].icon} /> {WORDS[state].word}
      </span>
    </Stat>
  );
}

function shared({ deputies }: Owner): string {
  const jobs = deputies.reduce((sum, one) => sum + one.jobs, 0);
  return `${plural(jobs, "job")} at ${plural(deputies.length, "deputy", "deputies")}`;
}

const WORDS = {
  ready: { word: "Ready", icon: "done", more: "all jobs restored, room on the disk" },
  trouble: { word: "In trouble", icon: "warning", more: "" },
  unknown: { word: "Not heard", icon: "link", more: "asking it" },
} as const;
