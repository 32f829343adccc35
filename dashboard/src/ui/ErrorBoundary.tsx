import { Component, type ReactNode } from "react";
import { Problem } from "./Problem";

interface State {
  error: Error | null;
}

/** Catches a fault of the page itself, so that it is said rather than shown as an empty screen. */
export class ErrorBoundary extends Component<{ children: ReactNode }, State> {
  override state: State = { error: null };

  static getDerivedStateFromError(error: unknown): State {
    return { error: error instanceof Error ? error : new Error(String(error)) };
  }

  override render() {
    if (this.state.error === null) return this.props.children;
    return (
      <main id="main" className="page">
        <h1>This page failed</h1>
        <Problem error={this.state.error} />
        <p>
          <button type="button" className="button" onClick={() => location.reload()}>
            Load it again
          </button>
        </p>
      </main>
    );
  }
}
