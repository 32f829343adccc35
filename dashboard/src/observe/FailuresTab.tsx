import { useQuery } from "@tanstack/react-query";
import { failuresQuery } from "../api/queries";
import type { ViewProps } from "../job/tabs";
import { FailureList } from "./FailureList";
import { Unanswered } from "../ui/Unanswered";

/** What a job's nodes could not do. */
export function FailuresTab({ job }: ViewProps) {
  const question = useQuery(failuresQuery(job.name));
  const { data } = question;
  if (data === undefined) return <Unanswered question={question} />;
  return <FailureList failures={data} />;
}
