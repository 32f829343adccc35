import type { Job, JobNode, Version } from "../api/types";
import type { QueryState } from "../ui/QueryStatus";

/** Props of the tabs of a job's page. A tab in another folder declares those that it uses. */
export interface ViewProps {
  job: Job;
  /** Empty until they are loaded. */
  versions: Version[];
  nodes: JobNode[];
  /** The queries of versions and nodes. */
  queries: { versions: QueryState; nodes: QueryState };
}
