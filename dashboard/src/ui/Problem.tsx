import { ApiError, isSessionEnded } from "../api/client";
import { visible } from "../format/text";
import { askToSignIn } from "../session/gate";
import { Icon } from "./Icon";

interface Props {
  error: Error;
  /** Asks once more; without it, nothing can be done from here. */
  again?: () => void;
}

/** What went wrong and what to do about it; the problem's title only where the coordinator said no more. */
export function Problem({ error, again }: Props) {
  const { detail, hint } = error instanceof ApiError ? error : { detail: "", hint: "" };
  return (
    <div className="problem" role="alert">
      <Icon name="warning" />
      <div>
        <strong>{visible(sentence(detail || error.message))}</strong>
        {hint && <p>{visible(sentence(hint))}</p>}
        {isSessionEnded(error) && (
          <p>
            <button type="button" className="button" onClick={askToSignIn}>
              Sign in again
            </button>
          </p>
        )}
      </div>
      {again !== undefined && !isSessionEnded(error) && (
        <button type="button" className="button" data-testid="again" onClick={again}>
          Again
        </button>
      )}
    </div>
  );
}

const sentence = (text: string) => text.charAt(0).toUpperCase() + text.slice(1);
