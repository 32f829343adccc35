import type { Job, JobNode } from "../api/types";
import { LogView } from "./LogView";

/** Log lines of a job, from its nodes and the coordinator. */
export function LogsTab({ job, nodes }: { job: Job; nodes: JobNode[] }) {
  return <LogView job={job.name} nodes={nodes.map(({ name }) => name)} />;
}
