import { useMutation, useQuery } from "@tanstack/react-query";
import { signOut } from "../api/commands";
import { sessionQuery } from "../queries/session";
import { Dialog } from "../ui/Dialog";
import { Icon } from "../ui/Icon";
import { openSignIn, closeSignIn, useSignInOpen } from "../api/sessionState";
import { SignInForm } from "./SignInForm";

const VIEWERS = "viewers can see everything, but change nothing";

/** Buttons to sign in and out. */
export function SessionMenu() {
  const { data: role } = useQuery(sessionQuery);
  const asked = useSignInOpen();
  // Reloading clears the cached data, and opens the stream without the session.
  const leave = useMutation({ mutationFn: signOut, onSuccess: () => location.reload() });
  return (
    <>
      {role === "operator" ? (
        <button type="button" className="quiet-button" data-testid="sign-out" onClick={() => leave.mutate()}>
          <Icon name="key" />
          <span>
            <span className="wide-only">Operator · </span>Sign out
          </span>
        </button>
      ) : (
        <SignIn isViewer={role === "viewer"} />
      )}
      {asked && <SignInDialog isViewer={role === "viewer"} onLeave={() => leave.mutate()} />}
    </>
  );
}

/** Button to sign in; viewers see their role. */
function SignIn({ isViewer }: { isViewer: boolean }) {
  return (
    <>
      {isViewer && (
        <span className="role" data-testid="role" title={VIEWERS}>
          Viewer<span className="visually-hidden">: {VIEWERS}</span>
        </span>
      )}
      <button type="button" className="quiet-button" data-testid="sign-in" onClick={openSignIn}>
        <Icon name="key" /> Sign in
      </button>
    </>
  );
}

function SignInDialog({ isViewer, onLeave }: { isViewer: boolean; onLeave: () => void }) {
  return (
    <Dialog title="Sign in" onClose={closeSignIn}>
      <SignInForm
        onDone={closeSignIn}
        others={
          <>
            {isViewer && (
              <button type="button" className="quiet-button" onClick={onLeave}>
                Sign out as viewer
              </button>
            )}
            <button type="button" className="button" onClick={closeSignIn}>
              Cancel
            </button>
          </>
        }
      />
    </Dialog>
  );
}
