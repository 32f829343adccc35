import { useQuery } from "@tanstack/react-query";
import { useEffect } from "react";
import { jobQuery, jobsQuery } from "../queries/jobs";
import { sessionQuery } from "../queries/session";
import { schemaQuery } from "./queries";
import { useFollow } from "../live/LiveProvider";
import { Link, useParam } from "../router/router";
import { ErrorMessage } from "../ui/ErrorMessage";
import { cloneValues, parseDraft, initialValues } from "./initialValues";
import { JobEditor } from "./JobEditor";
import type { Schema } from "./schema";
import { Loading } from "../ui/QueryStatus";
import "../styles/newjob.css";

/** Page with a form for a new job, its job file, the command that submits it, and validation errors. */
export function NewJobPage() {
  useFollow(null);
  useEffect(() => void (document.title = "New job · shoal"), []);
  const { data: role } = useQuery(sessionQuery);
  const { data: schema, error } = useQuery(schemaQuery);
  return (
    <section className="new-job">
      <nav className="crumbs" aria-label="Breadcrumb">
        <Link href="/">Jobs</Link>
      </nav>
      <header className="page-head">
        <h1>New job</h1>
      </header>
      {error && <ErrorMessage error={error} />}
      {role !== undefined && role !== "operator" && (
        <p className="panel nothing">Only operators can create jobs. Sign in with an operator's token.</p>
      )}
      {!error && (role === undefined || schema === undefined) && <Loading />}
      {role === "operator" && schema && <EditorWithValues schema={schema} />}
    </section>
  );
}

/** The form with initial values: a draft from the address, another job, or the defaults. */
function EditorWithValues({ schema }: { schema: Schema }) {
  const from = useParam("from");
  const drafted = parseDraft(useParam("spec"));
  const copies = drafted === null && from !== "";
  const { data: model, error } = useQuery({ ...jobQuery(from), enabled: copies });
  const { data: jobs } = useQuery({ ...jobsQuery, enabled: copies });
  if (error) return <ErrorMessage error={error} />;
  if (copies && (model === undefined || jobs === undefined)) return <Loading />;
  const taken = new Set(jobs?.map(({ name }) => name));
  const values = drafted ?? (model ? cloneValues(schema, model.spec, taken) : initialValues(schema));
  return <JobEditor schema={schema} initial={values} />;
}
