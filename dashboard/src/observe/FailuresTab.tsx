import { useQuery } from "@tanstack/react-query";
import { failuresQuery } from "../api/queries";
import type { ViewProps } from "../job/tabs";
import { Problem } from "../ui/Problem";
import { FailureList } from "./FailureList";

/** What a job's nodes could not do. */
export function FailuresTab({ job }: ViewProps) {
  const { data, error } = useQuery(failuresQuery(job.name));
  if (data === undefined) return error ? <Problem error={error} /> : <p className="loading">Asking the coordinator …</p>;
  return <FailureList failures={data} />;
}
