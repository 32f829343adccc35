import { useMutation, useQuery } from "@tanstack/react-query";
import { signOut } from "../api/commands";
import { sessionQuery } from "../api/queries";
import { Dialog } from "../ui/Dialog";
import { Icon } from "../ui/Icon";
import { askToSignIn, endSignIn, useSignInAsked } from "./gate";
import { SignInForm } from "./SignInForm";

const VIEWERS = "viewers see everything; only operators act";

/** Who is looking: the way in, or the way out. */
export function SessionMenu() {
  const { data: role } = useQuery(sessionQuery);
  const asked = useSignInAsked();
  // A new page forgets what was read, and its stream is opened without the session.
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

/** Whoever is no operator sees everything and has no buttons; a viewer is told why, and both may become an operator. */
function SignIn({ isViewer }: { isViewer: boolean }) {
  return (
    <>
      {isViewer && (
        <span className="role" data-testid="role" title={VIEWERS}>
          Viewer<span className="visually-hidden">: {VIEWERS}</span>
        </span>
      )}
      <button type="button" className="quiet-button" data-testid="sign-in" onClick={askToSignIn}>
        <Icon name="key" /> Sign in
      </button>
    </>
  );
}

function SignInDialog({ isViewer, onLeave }: { isViewer: boolean; onLeave: () => void }) {
  return (
    <Dialog title="Sign in" onClose={endSignIn}>
      <SignInForm
        onDone={endSignIn}
        others={
          <>
            {isViewer && (
              <button type="button" className="quiet-button" onClick={onLeave}>
                Sign out as viewer
              </button>
            )}
            <button type="button" className="button" onClick={endSignIn}>
              Cancel
            </button>
          </>
        }
      />
    </Dialog>
  );
}
