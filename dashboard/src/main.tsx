import "./styles/tokens.css";
import "./styles/base.css";
import "./styles/shell.css";
import "./styles/controls.css";
import "./styles/shared.css";
import "./styles/table.css";
import "./styles/chart.css";
import "./styles/print.css";
import { QueryCache, QueryClient, QueryClientProvider } from "@tanstack/react-query";
import { StrictMode } from "react";
import { createRoot } from "react-dom/client";
import { ApiError } from "./api/client";
import { App } from "./App";
import { LiveProvider } from "./live/LiveProvider";
import { eventLog } from "./live/eventLog";
import { setSignInRequired } from "./api/sessionState";
import { preloadAll } from "./ui/lazyComponent";
import { startTheme } from "./ui/theme";

/** Load the code of the other pages, so that they can be opened while the coordinator does not answer. */
const preload = () => void preloadAll();

startTheme();
eventLog.opening();

const client = new QueryClient({
  queryCache: new QueryCache({
    onError: (error) => {
      if (error instanceof ApiError && error.status === 401) setSignInRequired(true);
    },
  }),
  defaultOptions: {
    queries: {
      // The stream reports changes, so nothing is refetched speculatively.
      staleTime: Infinity,
      refetchOnWindowFocus: false,
      refetchOnReconnect: false,
      // The browser's offline state concerns the internet; the coordinator may be local.
      networkMode: "always",
      retry: (failures, error) =>
        failures < 2 && !(error instanceof ApiError && error.status >= 400 && error.status < 500),
    },
    mutations: { networkMode: "always" },
  },
});

const root = document.getElementById("root");
if (root === null) throw new Error("index.html has no #root");
createRoot(root).render(
  <StrictMode>
    <QueryClientProvider client={client}>
      <LiveProvider onConnect={preload}>
        <App />
      </LiveProvider>
    </QueryClientProvider>
  </StrictMode>,
);
