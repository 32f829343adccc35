/** The tabs of a job's page, in their order. A new tab is one entry of `TABS`; its id is the value of `view` in the address. */
import type { ComponentType } from "react";
import type { Version } from "../api/types";
import { hasExitCurve } from "../exits/exitCurve";
import { lazyComponent } from "../ui/lazyComponent";
import type { ViewProps } from "./viewProps";

interface Tab {
  id: string;
  text: string;
  View: ComponentType<ViewProps>;
  /** Return whether the job has the tab; without it, every job has. */
  isFor?: (versions: Version[]) => boolean;
}

/** The default tab is loaded at once, while the page fetches its job; the others on demand. */
const isDefault = !new URLSearchParams(location.search).has("view");

export const TABS: readonly [Tab, ...Tab[]] = [
  { id: "overview", text: "Overview", View: lazyComponent(async () => (await import("./Overview")).Overview, isDefault) },
  { id: "clients", text: "Node reports", View: lazyComponent(async () => (await import("../clients/ClientsTab")).ClientsTab) },
  { id: "exits", text: "Exits", View: lazyComponent(async () => (await import("../exits/ExitsTab")).ExitsTab), isFor: (versions) => versions.some(hasExitCurve) },
  { id: "models", text: "Models", View: lazyComponent(async () => (await import("../models/ModelsTab")).ModelsTab) },
  { id: "failures", text: "Failures", View: lazyComponent(async () => (await import("../failures/FailuresTab")).FailuresTab) },
  { id: "logs", text: "Logs", View: lazyComponent(async () => (await import("../logs/LogsTab")).LogsTab) },
  { id: "configuration", text: "Configuration", View: lazyComponent(async () => (await import("./Configuration")).Configuration) },
];

export const VIEWS = TABS.map(({ id }) => id) as [string, ...string[]];
