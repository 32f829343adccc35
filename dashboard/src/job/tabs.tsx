/** The tabs of a job's page, in their order. Each is loaded when it is chosen; the first, while the page asks for its job. */
import type { ComponentType } from "react";
import type { Job, JobNode, Version } from "../api/types";
import type { Question } from "../ui/Unanswered";
import { lazily } from "../ui/lazily";

/** What every tab is given: the page has it already. */
export interface ViewProps {
  job: Job;
  versions: Version[];
  nodes: JobNode[];
  /** Whether the versions and the nodes are known yet: where they are not, there are none of either. */
  answers: { versions: Question; nodes: Question };
}

/** What `view` in the address can be. */
export const VIEWS = ["overview", "clients", "models", "failures", "logs", "configuration"] as const;

interface Tab {
  id: (typeof VIEWS)[number];
  text: string;
  View: ComponentType<ViewProps>;
}

const isFirst = !new URLSearchParams(location.search).has("view");
const Overview = lazily(async () => (await import("./Overview")).Overview, isFirst);
const Clients = lazily(async () => (await import("../clients/ClientsTab")).ClientsTab);
const Models = lazily(async () => (await import("../models/ModelsTab")).ModelsTab);
const Failures = lazily(async () => (await import("../observe/FailuresTab")).FailuresTab);
const Logs = lazily(async () => (await import("../observe/LogsTab")).LogsTab);
const Configuration = lazily(async () => (await import("./Configuration")).Configuration);

export const TABS: readonly [Tab, ...Tab[]] = [
  { id: "overview", text: "Overview", View: Overview },
  { id: "clients", text: "Clients", View: Clients },
  { id: "models", text: "Models", View: Models },
  { id: "failures", text: "Failures", View: Failures },
  { id: "logs", text: "Logs", View: Logs },
  { id: "configuration", text: "Configuration", View: Configuration },
];
