import { useQuery } from "@tanstack/react-query";
import { failuresQuery } from "../api/queries";
import type { ViewProps } from "../job/tabs";
import { Problem } from "../ui/Problem";
import { FailureList } from "./FailureList";
import { Loading } from "../ui/Unanswered";

/** What a job's nodes could not do. */
export function FailuresTab({ job }: ViewProps) {
  const { data, error } = useQuery(failuresQuery(job.name));
  if (data === undefined) return error ? <Problem error={error} /> : <Loading />;
  return <FailureList failures={data} />;
}
