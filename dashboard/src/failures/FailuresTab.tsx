import { useQuery } from "@tanstack/react-query";
import { failuresQuery } from "../queries/jobs";
import type { Job } from "../api/types";
import { FailureList } from "./FailureList";
import { QueryStatus } from "../ui/QueryStatus";

/** Failures of a job's nodes. */
export function FailuresTab({ job }: { job: Job }) {
  const query = useQuery(failuresQuery(job.name));
  const { data } = query;
  if (data === undefined) return <QueryStatus query={query} />;
  return <FailureList failures={data} />;
}
