import { ApiError, isSessionEnded } from "../api/client";
import { openSignIn } from "../api/sessionState";
import { capitalize, escapeHidden } from "../format/text";
import { Icon } from "./Icon";

interface Props {
  error: Error;
  /** Without it there is no button to retry. */
  onRetry?: () => void;
}

/** An error with its hint. The title is shown only if the coordinator gave no detail. */
export function ErrorMessage({ error, onRetry }: Props) {
  const { detail, hint } = error instanceof ApiError ? error : { detail: "", hint: "" };
  return (
    <div className="problem" role="alert">
      <Icon name="warning" />
      <div>
        <strong>{escapeHidden(capitalize(detail || error.message))}</strong>
        {hint && <p>{escapeHidden(capitalize(hint))}</p>}
        {isSessionEnded(error) && (
          <p>
            <button type="button" className="button" onClick={openSignIn}>
              Sign in again
            </button>
          </p>
        )}
      </div>
      {onRetry !== undefined && !isSessionEnded(error) && (
        <button type="button" className="button" data-testid="retry" onClick={onRetry}>
          Retry
        </button>
      )}
    </div>
  );
}
