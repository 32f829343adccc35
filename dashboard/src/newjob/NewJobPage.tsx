import { useQuery } from "@tanstack/react-query";
import { useEffect } from "react";
import { jobQuery, jobsQuery, schemaQuery, sessionQuery } from "../api/queries";
import { useFollow } from "../live/LiveProvider";
import { Link, useParam } from "../router";
import { Problem } from "../ui/Problem";
import { copyOf, fromAddress, start } from "./start";
import { Editor } from "./Editor";
import type { Schema } from "./schema";
import { Loading } from "../ui/Unanswered";
import "../styles/newjob.css";

/** A job file as a form; the file itself, the command that would submit it, and what is wrong with it, beside it. */
export function NewJobPage() {
  useFollow(null);
  useEffect(() => void (document.title = "New job · shoal"), []);
  const { data: role } = useQuery(sessionQuery);
  const { data: schema, error } = useQuery(schemaQuery);
  return (
    <section className="new-job">
      <nav className="crumbs" aria-label="Where you are">
        <Link href="/">Jobs</Link>
      </nav>
      <header className="page-head">
        <h1>New job</h1>
      </header>
      {error && <Problem error={error} />}
      {role !== undefined && role !== "operator" && (
        <p className="panel nothing">Only operators begin jobs. Sign in with an operator’s token.</p>
      )}
      {!error && (role === undefined || schema === undefined) && <Loading />}
      {role === "operator" && schema && <Filled schema={schema} />}
    </section>
  );
}

/** The form with what the address says it begins with: a draft, another job, or nothing. */
function Filled({ schema }: { schema: Schema }) {
  const from = useParam("from");
  const drafted = fromAddress(useParam("spec"));
  const copies = drafted === null && from !== "";
  const { data: model, error } = useQuery({ ...jobQuery(from), enabled: copies });
  const { data: jobs } = useQuery({ ...jobsQuery, enabled: copies });
  if (error) return <Problem error={error} />;
  if (copies && (model === undefined || jobs === undefined)) return <Loading />;
  const taken = new Set(jobs?.map(({ name }) => name));
  const values = drafted ?? (model ? copyOf(schema, model.spec, taken) : start(schema));
  return <Editor schema={schema} initial={values} />;
}
