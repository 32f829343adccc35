/** The tabs of a job's page, in their order. Each is loaded when it is chosen; the first, while the page asks for its job. */
import { lazy, type ComponentType } from "react";
import type { Job, JobNode, Version } from "../api/types";

/** What every tab is given: the page has it already. */
export interface ViewProps {
  job: Job;
  versions: Version[];
  nodes: JobNode[];
}

/** What `view` in the address can be. */
export const VIEWS = ["overview", "clients", "models", "failures", "logs", "configuration"] as const;

interface Tab {
  id: (typeof VIEWS)[number];
  text: string;
  View: ComponentType<ViewProps>;
}

const overview = async () => ({ default: (await import("./Overview")).Overview });
const Overview = lazy(overview);
if (!new URLSearchParams(location.search).has("view")) void overview();
const Clients = lazy(async () => ({ default: (await import("../clients/ClientsTab")).ClientsTab }));
const Models = lazy(async () => ({ default: (await import("../models/ModelsTab")).ModelsTab }));
const Failures = lazy(async () => ({ default: (await import("../observe/FailuresTab")).FailuresTab }));
const Logs = lazy(async () => ({ default: (await import("../observe/LogsTab")).LogsTab }));
const Configuration = lazy(async () => ({ default: (await import("./Configuration")).Configuration }));

export const TABS: readonly [Tab, ...Tab[]] = [
  { id: "overview", text: "Overview", View: Overview },
  { id: "clients", text: "Clients", View: Clients },
  { id: "models", text: "Models", View: Models },
  { id: "failures", text: "Failures", View: Failures },
  { id: "logs", text: "Logs", View: Logs },
  { id: "configuration", text: "Configuration", View: Configuration },
];
