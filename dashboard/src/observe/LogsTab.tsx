import type { ViewProps } from "../job/tabs";
import { LogView } from "./LogView";

/** What a job's nodes and the coordinator log of it. */
export function LogsTab({ job, nodes }: ViewProps) {
  return <LogView job={job.name} nodes={nodes.map(({ name }) => name)} />;
}
