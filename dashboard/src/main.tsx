import "./styles/tokens.css";
import "./styles/base.css";
import "./styles/shell.css";
import "./styles/controls.css";
import "./styles/shared.css";
import "./styles/chart.css";
import "./styles/print.css";
import { QueryCache, QueryClient, QueryClientProvider } from "@tanstack/react-query";
import { StrictMode } from "react";
import { createRoot } from "react-dom/client";
import { ApiError } from "./api/client";
import { App } from "./App";
import { LiveProvider } from "./live/LiveProvider";
import { deltas } from "./live/log";
import { setGateClosed } from "./session/gate";
import { startTheme } from "./ui/theme";

startTheme();
deltas.opening();

const client = new QueryClient({
  queryCache: new QueryCache({
    onError: (error) => {
      if (error instanceof ApiError && error.status === 401) setGateClosed(true);
    },
  }),
  defaultOptions: {
    queries: {
      // The stream says what changed; nothing is fetched again on a guess.
      staleTime: Infinity,
      refetchOnWindowFocus: false,
      refetchOnReconnect: false,
      // "Offline" concerns the internet; the coordinator may be this very machine.
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
      <LiveProvider>
        <App />
      </LiveProvider>
    </QueryClientProvider>
  </StrictMode>,
);
